"""What the site says of dpexp by itself: options, methods, artifacts, files and their links."""
