"""The only way to the data: every read and write of memories is authorised, decrypted and recorded here."""
