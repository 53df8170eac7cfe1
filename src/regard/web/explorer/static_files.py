"""HTTP of the files of the page."""

from fastapi import FastAPI, Request, Response

from regard.page import page_files

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated by ETag
}


def add_page(app: FastAPI) -> None:
    """Serve the files of the page."""

    def serve(request: Request) -> Response:
        file = page_files()[request.scope["path"]]
        headers = HEADERS | {"ETag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.content_type, headers=headers)

    for url in page_files():
        app.add_api_route(url, serve, methods=["GET", "HEAD"], include_in_schema=False)
