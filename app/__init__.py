"""The explorer: a web page to question a model and see how sure it is, and how right."""
