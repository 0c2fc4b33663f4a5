"""The view: whole runs to scroll through in a browser, served on the loopback address."""
