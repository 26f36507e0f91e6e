// The waiting requests, and the workers that would help.
import { Table, Text } from "@chakra-ui/react";

import { count, duration, secondsSince } from "./format";
import { Columns, type Schemas, Scroller, TaskName } from "./parts";

const HEADERS = ["Place", "Task", "Waits", "Priority", "Asks for", "Why it waits"];

export const Queue = ({ queue }: { queue: Schemas["QueueTable"] }) => (
  <>
    <Text mb={2}>
      {count(queue.total, "task")} of your DAGs {queue.total === 1 ? "waits" : "wait"}
      {queue.hidden > 0 ? `, and ${queue.hidden.toLocaleString()} of other DAGs` : ""}.
      {queue.wanted.length > 0 &&
        ` More workers that would help now: ${queue.wanted.map((row) => `${row.workers} of type ${row.type} (for ${count(row.requests, "task")})`).join(", ")}.`}
    </Text>
    {queue.rows.length > 0 && (
      <Scroller label="Queue">
        <Table.Root minW="860px" size="sm">
          <Columns names={HEADERS} />
          <Table.Body>
            {queue.rows.map((row) => (
              <Table.Row key={`${row.task.dag_id}/${row.task.run_id}/${row.task.task_id}/${row.task.map_index}/${row.try_number}`}>
                <Table.Cell>{row.position ?? "-"}</Table.Cell>
                <Table.Cell>
                  <TaskName task={row.task} />
                  {row.try_number > 1 ? ` (try ${row.try_number})` : ""}
                </Table.Cell>
                <Table.Cell>{duration(secondsSince(row.submitted_at))}</Table.Cell>
                <Table.Cell>{row.priority}</Table.Cell>
                <Table.Cell>{row.asked.map((line) => <div key={line}>{line}</div>)}</Table.Cell>
                <Table.Cell maxW="420px" overflowWrap="anywhere" whiteSpace="normal">{row.reason || "not decided yet"}</Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Scroller>
    )}
  </>
);
