"""What is said at the end."""


class Report:
    """Lines in the form of TAP."""

    def __init__(self):
        self.failed = 0

    def say(self, good, text, details=()):
        print(f'{"ok" if good else "not ok"} - {text}', flush=True)
        for detail in details[:20]:
            print(f'#   {detail}')
        if len(details) > 20:
            print(f'#   and {len(details) - 20} more')
        self.failed += not good
