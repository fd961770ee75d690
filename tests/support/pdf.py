"""PDF files with text, written by hand."""

from __future__ import annotations

import zlib


def pdf(
    pages: list[str],
    *,
    outline: list[tuple[str, int]] | None = None,
    trailer: str = "",
    content: bytes = b"",
) -> bytes:
    """A PDF of these pages; lines of a page are lines of its text.

    `outline`: titles, each with the page it begins on, from 0. `trailer`: more entries of the file's trailer.
    `content`: what every page draws, instead of its text.
    """
    entries, count = outline or [], len(pages)
    packed = zlib.compress(content) if content else b""
    first_page, first_entry = 5, 5 + 2 * count
    kids = " ".join(f"{first_page + 2 * n} 0 R" for n in range(count))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R /Outlines 4 0 R >>",
        f"<< /Type /Pages /Count {count} /Kids [{kids}] >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Type /Outlines /First {first_entry} 0 R /Last {first_entry + len(entries) - 1} 0 R >>".encode(),
    ]
    for n, text in enumerate(pages):
        drawn = packed or zlib.compress(_drawn(text))
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {first_page + 2 * n + 1} 0 R "
            "/Resources << /Font << /F 3 0 R >> >> >>".encode(),
            f"<< /Length {len(drawn)} /Filter /FlateDecode >>\nstream\n".encode() + drawn + b"\nendstream",
        ]
    for n, (title, page) in enumerate(entries):
        following = f"/Next {first_entry + n + 1} 0 R" if n + 1 < len(entries) else ""
        target = f"/Dest [{first_page + 2 * page} 0 R /Fit]"
        objects.append(f"<< /Title ({title}) /Parent 4 0 R {target} {following} >>".encode())
    return _file(objects, trailer)


def _drawn(text: str) -> bytes:
    lines = "".join(f"({line}) Tj T*\n" for line in text.splitlines())
    return f"BT /F 12 Tf 50 750 Td 15 TL\n{lines}ET".encode("latin-1")


def _file(objects: list[bytes], trailer: str) -> bytes:
    body, places = b"%PDF-1.7\n", []
    for n, each in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%b\nendobj\n" % (n, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    end = f"trailer\n<< /Size {size} /Root 1 0 R {trailer} >>\nstartxref\n{len(body)}\n%%EOF\n".encode()
    return body + b"xref\n0 %d\n0000000000 65535 f \n" % size + table + end
