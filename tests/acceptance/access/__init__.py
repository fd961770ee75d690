"""Who is let in, as whom, and for how long: tokens, issuers, API keys, policies."""
