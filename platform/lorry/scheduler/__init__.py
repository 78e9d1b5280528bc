"""Queues, fairness, admission and the step plan. No torch, no SQL."""

from lorry.scheduler.ageing import AgeingBound
from lorry.scheduler.plan import NewSequence, SequenceResult, SequenceStep, SlotLoad, StepPlan, StepResult
from lorry.scheduler.requests import Ending, FirstStep, ScheduledRequest, SequenceUpdate
from lorry.scheduler.scheduler import Scheduler

__all__ = [
    "AgeingBound",
    "Ending",
    "FirstStep",
    "NewSequence",
    "ScheduledRequest",
    "Scheduler",
    "SequenceResult",
    "SequenceStep",
    "SequenceUpdate",
    "SlotLoad",
    "StepPlan",
    "StepResult",
]
