"""The page that `sisctl web` serves to a browser on this machine. Needs Starlette and uvicorn (the extra `cli`)."""
