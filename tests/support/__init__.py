"""What tests are made with: services, clients, children to kill, models to compare with. No tests here."""
