"""AlcoveStore as LangGraph documents its stores, on a file and at a URL, called and awaited."""
