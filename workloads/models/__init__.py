"""Shipped `config.json` files, with the fields and values that their publishers state."""
