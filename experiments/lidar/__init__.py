"""Classes of the points of airborne laser scans."""
