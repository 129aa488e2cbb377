"""The pages, one module each: read what they show through `outrider.postgres.admin`, and render a template."""
