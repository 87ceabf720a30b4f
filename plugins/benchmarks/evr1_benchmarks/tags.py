"""Tags in answers, read in time linear in the length of the text."""

from __future__ import annotations


def blocks(text: str, opening: str = "<answer>", closing: str = "</answer>") -> list[str]:
    """What stands between an opening tag and the next closing one, each stripped, in order: `<answer>(.*?)</answer>`."""
    found: list[str] = []
    at = 0
    while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        found.append(text[start + len(opening) : end].strip())
        at = end + len(closing)
    return found


def behind_reasoning(text: str, *closings: str) -> str:
    """The text behind the last of these closing tags (`</think>` and that of Kimi models), all of it where there is none."""
    end = max((at + len(tag) for tag in closings or ("</think>", "\u25c1/think\u25b7") if (at := text.rfind(tag)) >= 0), default=0)
    return text[end:]
