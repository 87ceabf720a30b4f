"""Media: probe, sample, decode, resize, cache. `store.MediaStore` is the way in."""
