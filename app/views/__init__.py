"""What is shown: data into HTML, SVG and pictures."""
