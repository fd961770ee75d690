"""The operations of the service, each declared once: routes, OpenAPI and every client are made from them."""
