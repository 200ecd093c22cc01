"""What a participant does on the page."""

from playwright.sync_api import Page, expect


class Participant:
    """Looks at the page and acts; never faster than the page allows."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def sees(self, words: str) -> None:
        expect(self.page.locator("#stage")).to_contain_text(words)

    def question(self, after: str | None = None) -> str:
        """Wait for a question (another one than ``after``) and return its id."""
        wanted = ".question[data-query]"
        if after is not None:
            wanted += f':not([data-query="{after}"])'
        box = self.page.locator(wanted)
        box.wait_for()
        # The page ignores what comes before anybody could have looked.
        self.page.wait_for_timeout(260)
        return box.get_attribute("data-query") or ""

    def shown(self) -> tuple[str, str, str]:
        """Labels of head, left and right, as a screen reader says them."""
        labels = [
            self.page.locator(f".question {part}").get_attribute("aria-label") or ""
            for part in (".head", ".choice.left", ".choice.right")
        ]
        head, left, right = (label.split(": ", 1)[1] for label in labels)
        return head, left, right

    def numbers(self) -> tuple[int, int, int]:
        """Item numbers of head, left and right; the lab's pictures are called by theirs."""
        head, left, right = (int(label[:2]) for label in self.shown())
        return head, left, right

    def choose(self, side: str) -> None:
        self.page.locator(f".choice.{side}").click()
