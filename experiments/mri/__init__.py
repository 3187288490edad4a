"""Images from samples of their spectrum along radial lines and spirals, as in magnetic resonance imaging."""
