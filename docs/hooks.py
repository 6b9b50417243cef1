"""Fills the reference pages of the site from the code: help texts of commands, and settings."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
from typing import Any

from captioner.cli import COMMANDS, command_main


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks COMMANDS and SETTINGS of a page by what they stand for."""
    for mark, generate in (("<!-- COMMANDS -->", commands), ("<!-- SETTINGS -->", settings)):
        if mark in markdown:
            markdown = markdown.replace(mark, generate())
    return markdown


def commands() -> str:
    """Return a section with the help text of each command."""
    sections = []
    for name, (_, purpose) in COMMANDS.items():
        text = io.StringIO()
        columns = os.environ.get("COLUMNS")
        os.environ["COLUMNS"] = "90"
        try:
            with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
                command_main(name)(["--help"])
        finally:
            os.environ.pop("COLUMNS")
            if columns is not None:
                os.environ["COLUMNS"] = columns
        sections.append(f"## {name}\n\n{purpose.capitalize()}.\n\n```text\n{text.getvalue()}```\n")
    return "\n".join(sections)


def settings() -> str:
    """Return a table of the settings of each section of a recipe, with default and meaning."""
    from docstring_parser import parse

    from captioner.config.settings import Config

    sections = []
    for section, value in vars(Config()).items():
        document = parse(type(value).__doc__ or "")
        meanings = {each.arg_name: each.description for each in document.params}
        rows = [f"## {section}\n\n{document.short_description}\n", "| key | default | meaning |"]
        rows.append("| --- | --- | --- |")
        for field in dataclasses.fields(value):
            default = getattr(value, field.name)
            meaning = " ".join((meanings.get(field.name) or "").split()).replace("|", "\\|")
            shown = json.dumps(default)
            rows.append(f"| `{section}.{field.name}` | `{shown}` | {meaning} |")
        sections.append("\n".join(rows) + "\n")
    return "\n".join(sections)
