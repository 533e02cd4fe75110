"""The conditions of the options of tables."""

from spark_nats.conditions import Condition

OPTION_NOT_FOR_TABLES = Condition(
    "[NATS_OPTION_NOT_FOR_TABLES] option '{option}' is not for tables of what an account holds, and contradicts the "
    "option 'table'"
)
TABLE_IS_FOR_BATCHES = Condition(
    "[NATS_TABLE_IS_FOR_BATCHES] option 'table' is {table}, which is read in batches (spark.read), not in streaming: "
    "it says what an account holds at one time"
)
SUBJECT_NEEDS_SUBJECTS = Condition(
    "[NATS_SUBJECT_NEEDS_SUBJECTS] option 'subject' is for the table of subjects, and the option 'table' is {table}; "
    "drop it, or set 'table' to subjects"
)
