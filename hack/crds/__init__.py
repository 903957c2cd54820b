"""Makes the CustomResourceDefinitions that are derived from other projects' ones."""
