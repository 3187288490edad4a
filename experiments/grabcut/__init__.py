"""Objects cut out of photographs, from a trimap."""
