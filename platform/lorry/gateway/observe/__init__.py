"""What is told of a generation once it has ended: a line in the log, and the spans of a trace."""

from lorry.gateway.observe.recent import ended_request
from lorry.gateway.observe.sender import TraceCounts, TraceSender
from lorry.gateway.observe.settings import trace_config
from lorry.gateway.observe.story import Story
from lorry.gateway.observe.watch import Ended, Watch, open_watch

__all__ = ["Ended", "Story", "TraceCounts", "TraceSender", "Watch", "ended_request", "open_watch", "trace_config"]
