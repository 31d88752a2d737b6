"""Hold a history against the laws."""

from collections import Counter
from dataclasses import dataclass

# pylint: disable=unused-import
import laws_events
import laws_joins
import laws_leases
import laws_made
import laws_publish
import laws_queue
import laws_waits
from facts import Facts
from law import LAWS, law_name


@dataclass
class Anomaly:
    law: str
    text: str

    def __str__(self):
        return f'{self.law}: {self.text}'


@dataclass
class Checked:
    facts: Facts
    anomalies: list

    def summary(self):
        facts = self.facts
        fates = Counter(message.fate for message in facts.messages.values())
        outcomes = Counter(call.outcome for call in facts.calls)
        return (f'{len(facts.calls)} calls ({outcomes["unknown"]} unknown), messages: '
                f'{", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))}; '
                f'{sum(map(len, facts.leases.values()))} leases of {len(facts.leases)}, '
                f'{len(facts.final.get("joins", ()))} joins, {len(self.anomalies)} anomalies')

    def laws(self):
        return {anomaly.law for anomaly in self.anomalies}


def check(history, only=None):
    """Hold a history against all laws, or some by name."""
    facts = Facts(history)
    anomalies = []
    for function in LAWS:
        if only and law_name(function) not in only:
            continue
        anomalies += [Anomaly(law_name(function), text) for text in function(facts)]
    return Checked(facts, anomalies)
