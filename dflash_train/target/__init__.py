"""The frozen model that verifies: how it is loaded, read and decoded."""
