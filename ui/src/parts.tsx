// What several views use.
import { Badge, Box, Button, Flex, Spinner, Table, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link as RouterLink } from "react-router-dom";

import type { components } from "./api";

export type Schemas = components["schemas"];
export type DeviceState = Schemas["DeviceState"];

type Look = { label: string; meaning: string; colour: string };

/** Each state has a colour and, on the map, a shape. */
export const STATES: Record<DeviceState, Look> = {
  free: { label: "Free", meaning: "takes a task now", colour: "green" },
  leased: { label: "Leased", meaning: "a task holds all of it", colour: "blue" },
  partly: { label: "Partly leased", meaning: "tasks hold a part of it", colour: "cyan" },
  idle: { label: "Leased but idle", meaning: "a task holds it and computes nothing", colour: "yellow" },
  held: { label: "On hold", meaning: "drained, or tested after errors", colour: "orange" },
  faulty: { label: "Faulty", meaning: "it reports a problem, or its worker is lost", colour: "red" },
  divided: { label: "Divided", meaning: "its parts are leased", colour: "gray" },
};

export const StateBadge = ({ state }: { state: DeviceState }) => (
  <Badge colorPalette={STATES[state].colour} title={STATES[state].meaning} variant="surface">
    {STATES[state].label}
  </Badge>
);

/** A link to a task instance, or what stands for one that the reader may not see. */
export const TaskName = ({ task }: { task: Schemas["TaskLink"] | null }) => {
  if (task === null) return <Text as="span" color="fg.muted">in use (a DAG that you may not see)</Text>;
  const { dag_id, map_index, run_id, task_id } = task;
  const parts = ["dags", dag_id, "runs", run_id, "tasks", task_id, ...(map_index >= 0 ? ["mapped", String(map_index)] : [])];
  return (
    <RouterLink
      style={{ textDecoration: "underline", overflowWrap: "break-word" }}
      title={run_id}
      to={`/${parts.map(encodeURIComponent).join("/")}`}
    >
      {dag_id}.<wbr />
      {task_id}
      {map_index >= 0 ? `[${map_index}]` : ""}
    </RouterLink>
  );
};

/** One line for a view that has no answer yet, or a problem; the last answer stays on the page. */
export const Status = ({ isLoading, problem }: { isLoading: boolean; problem?: string }) => {
  if (problem !== undefined) {
    return (
      <Box bg="bg.warning" borderRadius="md" my={2} p={3} role="alert">
        {problem} The page asks again by itself.
      </Box>
    );
  }
  return isLoading ? (
    <Flex align="center" color="fg.muted" gap={2} my={4} role="status">
      <Spinner size="sm" /> Loading
    </Flex>
  ) : null;
};

/** Buttons that go through pages of rows. */
export const Pager = ({
  limit,
  offset,
  onChange,
  total,
}: {
  limit: number;
  offset: number;
  onChange: (offset: number) => void;
  total: number;
}) =>
  total > limit ? (
    <Flex align="center" gap={3} my={3}>
      <Button disabled={offset === 0} onClick={() => onChange(Math.max(0, offset - limit))} size="sm" variant="outline">
        Previous
      </Button>
      <Text fontSize="sm">
        {(offset + 1).toLocaleString()} to {Math.min(offset + limit, total).toLocaleString()} of {total.toLocaleString()}
      </Text>
      <Button disabled={offset + limit >= total} onClick={() => onChange(offset + limit)} size="sm" variant="outline">
        Next
      </Button>
    </Flex>
  ) : null;

/** A heading with what belongs to it. */
export const Section = ({ children, title }: { children: ReactNode; title: string }) => (
  <Box as="section" my={5}>
    <Text as="h3" fontSize="md" fontWeight="semibold" mb={2}>
      {title}
    </Text>
    {children}
  </Box>
);

/** The head of a table. */
export const Columns = ({ names }: { names: readonly string[] }) => (
  <Table.Header>
    <Table.Row>
      {names.map((name) => (
        <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
      ))}
    </Table.Row>
  </Table.Header>
);

/** A table that scrolls sideways on a narrow screen, by keyboard too. */
export const Scroller = ({ children, label }: { children: ReactNode; label: string }) => (
  <Box aria-label={label} overflowX="auto" role="region" tabIndex={0}>
    {children}
  </Box>
);
