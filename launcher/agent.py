"""Link agent (body follows)."""
