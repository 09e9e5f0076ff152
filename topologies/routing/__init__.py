"""Routes between chips inside a scale-up domain and across the scale-out fabric."""
