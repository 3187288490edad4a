"""What results are written with: whole files, figures, Markdown tables, measures of quality, and their origin."""
