"""The line chart: scales, column reduction, rasters, and the picture as lines of text."""
