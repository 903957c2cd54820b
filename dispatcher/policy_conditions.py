"""What a PropagationPolicy's status says: whether it is in force, and whether it selects anything. Pure."""

from collections.abc import Sequence

from kube.objects.meta import Condition

NO_JOBS_LOOKED_AT = "not looked at: there are too many jobs in this namespace"


def policy_conditions(
    problems: Sequence[str], idle: str | None, before: Sequence[Condition], generation: int, wall: str
) -> list[Condition]:
    """`problems`: why it is not in force. `idle`: "" when it selects a job, why not otherwise, None when nobody looked.
    lastTransitionTime moves only with status (metav1.Condition)."""
    if problems:
        wanted = [
            Condition(
                type="Ready", status="False", reason="InvalidPolicy", message="not in force: " + "; ".join(problems)
            ),
            Condition(
                type="Matched", status="False", reason="InvalidPolicy", message="a policy not in force selects nothing"
            ),
        ]
    else:
        wanted = [Condition(type="Ready", status="True", reason="InForce", message="in force")]
        if idle is None:
            wanted.append(Condition(type="Matched", status="Unknown", reason="NotLooked", message=NO_JOBS_LOOKED_AT))
        elif idle:
            wanted.append(Condition(type="Matched", status="False", reason="SelectsNothing", message=idle))
        else:
            wanted.append(Condition(type="Matched", status="True", reason="SelectsJobs", message="selects jobs"))
    known = {c.type: c for c in before}
    for condition in wanted:
        was = known.get(condition.type)
        unchanged = was is not None and was.status == condition.status
        condition.last_transition_time = was.last_transition_time if was is not None and unchanged else wall
        condition.observed_generation = generation
    return wanted
