"""Attribution: rollout, flow, relevance, value norms, head importance and induction."""
