"""From a lhotse manifest to the batches of an optimizer step."""
