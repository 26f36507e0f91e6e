// The tab of a task instance: why it waits, or why it got its devices.
import { Badge, Box, Button, Code, Flex, Link, Table, Text } from "@chakra-ui/react";
import { useState } from "react";

import { ago, clock, count, duration, secondsSince } from "./format";
import { LeaseTable } from "./leases";
import { Columns, type Schemas, Scroller, Section, Status, TaskName } from "./parts";
import { address, query, usePoll } from "./poll";

type Placement = Schemas["Placement"];
type Forecast = Schemas["StartForecast"];
type Props = { dagId?: string; mapIndex?: string; runId?: string; taskId?: string };

const FORECAST_MS = 15_000;
const ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"];

const place = (position: number): string => ORDINALS[position - 1] ?? `number ${position.toLocaleString()}`;

const start = (forecast: Forecast | undefined): string => {
  if (forecast === undefined) return "";
  if (forecast.starts_now) return ", starts at the next decision";
  if (forecast.middle && forecast.low && forecast.high) {
    const [low, middle, high] = [clock(forecast.low), clock(forecast.middle), clock(forecast.high)];
    return low === high ? `, expected at ${middle}` : `, expected at ${middle} (${low} to ${high})`;
  }
  return forecast.not_before ? `, not before ${clock(forecast.not_before)}` : "";
};

/** One sentence that says all. */
const verdict = (shown: Placement, forecast: Forecast | undefined): string => {
  const asked = shown.asked.join(" ");
  switch (shown.state) {
    case "waiting":
      return shown.position
        ? `Waits for ${asked}, ${place(shown.position)} in the queue${start(forecast)}.`
        : `Waits for ${asked}. No scheduler has decided on it yet.`;
    case "paused":
      return `Paused by a person. It asks for ${asked}.`;
    case "placed":
      return shown.reason_code
        ? `Has its devices on ${shown.worker} and does not run yet.`
        : `Holds ${shown.devices.join(", ")} on ${shown.worker}.`;
    case "refused":
      return `Refused: no known worker can ever serve ${asked}.`;
    default:
      return `Ended. It asked for ${asked}.`;
  }
};

const Change = ({ forecast }: { forecast: Forecast }) => {
  const [isCopied, setCopied] = useState(false);
  const copy = (): void => {
    void navigator.clipboard.writeText(forecast.change_text).then(() => setCopied(true));
  };
  return (
    <Section title="What would start it now">
      {forecast.change_text ? (
        <>
          <Text mb={2}>It would start now {forecast.change}:</Text>
          <Flex align="center" gap={2} wrap="wrap">
            <Code overflowWrap="anywhere" p={2} whiteSpace="pre-wrap">
              {forecast.change_text}
            </Code>
            <Button onClick={copy} size="xs" variant="outline">
              {isCopied ? "Copied" : "Copy"}
            </Button>
          </Flex>
        </>
      ) : (
        <Text>No single change of the request would start it now.</Text>
      )}
    </Section>
  );
};

const Unknown = ({ forecast }: { forecast: Forecast }) => {
  const number = forecast.unknown.length + forecast.unknown_hidden;
  if (number === 0) return null;
  const named = forecast.unknown.slice(0, 3).join(", ");
  const more = number - Math.min(forecast.unknown.length, 3);
  return (
    <Text color="fg.muted">
      {forecast.middle ? "It may start sooner: " : "The start is unknown: "}
      the durations of {[named, more > 0 ? count(more, "other task") : ""].filter(Boolean).join(" and ")} are not known yet.
    </Text>
  );
};

const Queue = ({ shown }: { shown: Placement }) => (
  <>
    {shown.ahead.length + shown.ahead_hidden > 0 && (
      <Section title="Ahead in the queue">
        <Flex as="ul" direction="column" gap={1} listStyleType="none">
          {shown.ahead.map((task) => (
            <li key={`${task.dag_id}/${task.run_id}/${task.task_id}/${task.map_index}`}>
              <TaskName task={task} />
            </li>
          ))}
          {shown.ahead_hidden > 0 && <li>{count(shown.ahead_hidden, "more task")}</li>}
        </Flex>
      </Section>
    )}
    {shown.holders.length > 0 && (
      <Section title="Who holds devices that it could use">
        <LeaseTable label="Leases" leases={shown.holders} />
      </Section>
    )}
  </>
);

const Considered = ({ shown }: { shown: Placement }) => (
  <Section title={`What was considered${shown.decided_at ? `, ${ago(shown.decided_at)}` : ""}`}>
    {shown.summary && (
      <Text color="fg.muted" mb={2}>
        Policy {shown.policy}: {shown.summary}
      </Text>
    )}
    {shown.alternatives.map((alternative) => (
      <Box borderWidth={1} borderRadius="md" key={alternative.asked} my={2} p={3}>
        <Text fontWeight="medium">{alternative.asked}</Text>
        <Text color="fg.muted" fontSize="sm">
          {count(alternative.evaluated, "worker")} evaluated
        </Text>
        {alternative.ruled_out.map((row) => (
          <Text fontSize="sm" key={`${row.code}${row.found}`} overflowWrap="anywhere">
            {count(row.workers, "worker")} ruled out by {row.code}: asked {row.asked}, found {row.found}
          </Text>
        ))}
        {alternative.candidates.map((candidate) => (
          <Text fontSize="sm" key={`${candidate.worker}/${candidate.devices.join()}`} overflowWrap="anywhere">
            {candidate.is_chosen && <Badge colorPalette="green" mr={2}>Chosen</Badge>}
            {candidate.worker} ({candidate.devices.join(", ")}), score {candidate.score.toPrecision(4)}
            {Object.keys(candidate.terms).length > 0 &&
              ` = ${Object.entries(candidate.terms).map(([name, value]) => `${name} ${value.toPrecision(4)}`).join(" + ")}`}
          </Text>
        ))}
      </Box>
    ))}
  </Section>
);

const Progress = ({ path, progress }: { path: string; progress: Schemas["ProgressRow"] }) => (
  <Section title="Progress and checkpoint">
    <Text>
      {progress.step === null
        ? "No step is done yet"
        : `Step ${progress.step.toLocaleString()}${progress.total === null ? "" : ` of ${progress.total.toLocaleString()}`} is done`} ({progress.phase},
      reported {ago(progress.reported_at)}).{progress.ends_at ? ` It probably ends at ${clock(progress.ends_at)}.` : ""}
      {progress.spent_on ? ` Its time goes to: ${progress.spent_on}.` : ""}{" "}
      {progress.saved_step === null
        ? "No checkpoint is published."
        : `A resume loads the checkpoint of step ${progress.saved_step.toLocaleString()}${progress.saved_at ? `, saved ${ago(progress.saved_at)}` : ""}.`}
    </Text>
    {progress.has_profile && (
      <Text mt={1}>
        <Link textDecoration="underline" href={address(`profile/${path}`)}>Download the profile of some steps</Link>, and open it in ui.perfetto.dev.
      </Text>
    )}
  </Section>
);

const Tries = ({ tries }: { tries: Schemas["TryRow"][] }) => (
  <Section title="Runs on devices">
    <Scroller label="Runs on devices">
      <Table.Root minW="640px" size="sm">
        <Columns names={["Try", "Worker", "Devices", "Began", "Took", "How it ended"]} />
        <Table.Body>
          {tries.map((row) => (
            <Table.Row key={row.granted_at}>
              <Table.Cell>{row.try_number}</Table.Cell>
              <Table.Cell>{row.worker}</Table.Cell>
              <Table.Cell>{row.devices.join(", ")}</Table.Cell>
              <Table.Cell>{clock(row.granted_at)}</Table.Cell>
              <Table.Cell>
                {duration(
                  row.ended_at
                    ? (Date.parse(row.ended_at) - Date.parse(row.granted_at)) / 1000
                    : secondsSince(row.granted_at),
                )}
              </Table.Cell>
              <Table.Cell overflowWrap="anywhere">
                {row.ended_at ? [row.outcome, row.cause].filter(Boolean).join(": ") : row.state}
              </Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Scroller>
  </Section>
);

const Transitions = ({ transitions }: { transitions: Schemas["TransitionRow"][] }) => (
  <Section title="What happened">
    <Scroller label="What happened">
      <Table.Root minW="640px" size="sm">
        <Columns names={["At", "Then", "What was found out"]} />
        <Table.Body>
          {transitions.map((row, number) => (
            <Table.Row key={number}>
              <Table.Cell whiteSpace="nowrap">{clock(row.at)}</Table.Cell>
              <Table.Cell whiteSpace="nowrap">{row.phase}</Table.Cell>
              <Table.Cell overflowWrap="anywhere">{row.text}</Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Scroller>
  </Section>
);

export const PlacementTab = ({ dagId = "", mapIndex, runId, taskId }: Props) => {
  const index = mapIndex === undefined || mapIndex === "" ? "-1" : mapIndex;
  const path = `${encodeURIComponent(dagId)}?${query({ run_id: runId, task_id: taskId, map_index: index })}`;
  const { problem, value: shown } = usePoll<Placement>(`placement/${path}`);
  const canForecast = shown?.state === "waiting" || shown?.state === "refused";
  const { value: forecast } = usePoll<Forecast>(canForecast ? `forecast/${path}` : undefined, FORECAST_MS);
  if (shown === undefined) return <Status isLoading problem={problem} />;
  if (!shown.has_request) {
    return <Text color="fg.muted" p={4}>This task asked for no device, or its history is no longer kept.</Text>;
  }
  return (
    <Box className="hetero-airflow" maxW="1100px" p={4}>
      <Status isLoading={false} problem={problem} />
      <Text as="h2" aria-live="polite" fontSize="lg" fontWeight="semibold" overflowWrap="anywhere">
        {verdict(shown, forecast)}
      </Text>
      {shown.reason && (
        <Text mt={1} overflowWrap="anywhere">
          {shown.reason_code ? `Reason ${shown.reason_code}: ` : ""}
          {shown.reason}
          {shown.ends_at ? `; after ${clock(shown.ends_at)} ${shown.then}` : ""}
        </Text>
      )}
      <Text color="fg.muted" fontSize="sm" mt={1}>
        Priority {shown.priority}{shown.submitted_at ? `, submitted ${ago(shown.submitted_at)}` : ""}
      </Text>
      {forecast !== undefined && canForecast && (
        <>
          <Unknown forecast={forecast} />
          {!forecast.starts_now && <Change forecast={forecast} />}
        </>
      )}
      {shown.state === "waiting" && <Queue shown={shown} />}
      {shown.progress && <Progress path={path} progress={shown.progress} />}
      {shown.tries.length > 0 && <Tries tries={shown.tries} />}
      {shown.alternatives.length > 0 && <Considered shown={shown} />}
      {shown.transitions.length > 0 && <Transitions transitions={shown.transitions} />}
    </Box>
  );
};
