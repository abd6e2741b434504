"""The loop: observe, recover, plan, guard, journal, act, record. No boto3 and no SQL in here."""
