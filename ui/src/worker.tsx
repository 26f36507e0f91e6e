// One worker: what it offers, what it does, and a way to drain it.
import { Badge, Box, Button, Checkbox, Flex, Input, NativeSelect, Text } from "@chakra-ui/react";
import { useState } from "react";

import { useAddress } from "./filters";
import { ago, clock } from "./format";
import { LeaseTable } from "./leases";
import { type Schemas, Section, Status } from "./parts";
import { query, send, usePoll } from "./poll";
import { DeviceTable } from "./table";

type Facts = Schemas["WorkerFacts"];

const pairs = (values: Record<string, string>): string =>
  Object.entries(values)
    .map(([name, value]) => `${name} ${value}`)
    .join(", ") || "none";

type Question = { path: "drain" | "undrain"; target: string };

/** The name of a target on the page: a device of the worker, or the whole worker. */
const nameOf = (target: string, worker: string): string =>
  target === worker ? "this worker" : target.slice(worker.length + 1);

/** Buttons that drain and undrain the worker and its devices, each after a question. */
const Drain = ({ facts, onDone }: { facts: Facts; onDone: () => void }) => {
  const [question, setQuestion] = useState<Question>();
  const [reason, setReason] = useState("");
  const [move, setMove] = useState(false);
  const [problem, setProblem] = useState<string>();
  const [isBusy, setBusy] = useState(false);
  const held = [...new Set(facts.holds.map((hold) => (hold.device ? `${facts.worker}/${hold.device}` : facts.worker)))];
  const order = ({ path, target }: Question): void => {
    setBusy(true);
    send(path, path === "drain" ? { target, reason, move } : { target })
      .then(() => {
        setQuestion(undefined);
        setProblem(undefined);
        onDone();
      })
      .catch((error: unknown) => setProblem(error instanceof Error ? error.message : String(error)))
      .finally(() => setBusy(false));
  };
  return (
    <Box>
      {problem && <Text fontWeight="medium" role="alert">{problem}</Text>}
      <Flex gap={2} wrap="wrap">
        <Button disabled={isBusy} onClick={() => setQuestion({ path: "drain", target: facts.worker })} size="sm" variant="outline">
          Drain this worker
        </Button>
        {held.map((target) => (
          <Button disabled={isBusy} key={target} onClick={() => setQuestion({ path: "undrain", target })} size="sm" variant="outline">
            Undrain {nameOf(target, facts.worker)}
          </Button>
        ))}
      </Flex>
      {question && (
        <Box aria-label={`${question.path} ${question.target}`} as="form" borderWidth={1} borderRadius="md" mt={3} p={3} role="group">
          {question.path === "drain" ? (
            <>
              <Text mb={2}>
                {question.target} gets no new task until somebody undrains it. Running tasks {move ? "save and continue elsewhere" : "may finish there"}.
              </Text>
              <Flex align="center" gap={3} mb={3} wrap="wrap">
                <NativeSelect.Root size="sm" width="auto">
                  <NativeSelect.Field
                    aria-label="What to drain"
                    onChange={(event) => setQuestion({ path: "drain", target: event.currentTarget.value })}
                    value={question.target}
                  >
                    <option value={facts.worker}>the whole worker</option>
                    {facts.devices.map((row) => (
                      <option key={row.device} value={`${facts.worker}/${row.device}`}>{row.device} ({row.name})</option>
                    ))}
                  </NativeSelect.Field>
                  <NativeSelect.Indicator />
                </NativeSelect.Root>
                <Input aria-label="Reason" maxLength={150} onChange={(event) => setReason(event.target.value)} placeholder="reason" size="sm" value={reason} width="260px" />
                <Checkbox.Root checked={move} onCheckedChange={({ checked }) => setMove(checked === true)} size="sm">
                  <Checkbox.HiddenInput />
                  <Checkbox.Control />
                  <Checkbox.Label>Move running tasks</Checkbox.Label>
                </Checkbox.Root>
              </Flex>
            </>
          ) : (
            <Text mb={2}>{question.target} takes tasks again at once, also after errors that put it on hold.</Text>
          )}
          <Flex gap={3}>
            <Button colorPalette="orange" disabled={isBusy} onClick={() => order(question)} size="sm" type="button">
              {question.path === "drain" ? "Drain" : "Undrain"}
            </Button>
            <Button onClick={() => setQuestion(undefined)} size="sm" type="button" variant="ghost">
              Cancel
            </Button>
          </Flex>
        </Box>
      )}
    </Box>
  );
};

const Leases = ({ leases }: { leases: Schemas["LeaseRow"][] }) => (
  <Section title="Leases">
    {leases.length === 0 && <Text color="fg.muted">No task runs here.</Text>}
    {leases.length > 0 && <LeaseTable label="Leases of this worker" leases={leases} />}
  </Section>
);

export const WorkerView = ({ worker }: { worker: string }) => {
  const { change } = useAddress();
  const { problem, refresh, value: facts } = usePoll<Facts>(`worker?${query({ id: worker })}`);
  return (
    <Box>
      <Button onClick={() => change({ worker: undefined })} size="sm" variant="ghost">
        Back to all workers
      </Button>
      <Status isLoading={facts === undefined} problem={problem} />
      {facts && (
        <>
          <Flex align="center" gap={3} my={2} wrap="wrap">
            <Text as="h2" fontSize="xl" fontWeight="semibold" overflowWrap="anywhere">{facts.worker}</Text>
            <Badge colorPalette={facts.state === "online" ? "green" : "red"} variant="surface">{facts.state}</Badge>
          </Flex>
          <Text color="fg.muted">
            Host {facts.host}, engine {facts.engine}, last heartbeat {facts.last_seen ? ago(facts.last_seen) : "unknown"}
          </Text>
          <Text fontSize="sm">Labels: {pairs(facts.labels)}</Text>
          <Text fontSize="sm">Software: {pairs(facts.runtime)}</Text>
          {facts.problems.map((text) => <Text fontWeight="medium" key={text}>{text}</Text>)}
          {facts.state === "lost" && (
            <Text fontWeight="medium">Its heartbeat stopped, so it gets no task. Look at its agent, or forget the worker.</Text>
          )}
          <Section title="Holds">
            {facts.holds.length === 0 && <Text color="fg.muted">None.</Text>}
            {facts.holds.map((hold) => (
              <Text key={`${hold.device}/${hold.kind}`} overflowWrap="anywhere">
                {hold.device || "The whole worker"}: {hold.kind} since {clock(hold.since)}: {hold.cause}. It takes tasks again when {hold.returns}.
              </Text>
            ))}
          </Section>
          {facts.may_drain && <Drain facts={facts} onDone={refresh} />}
          <Section title="Devices"><DeviceTable devices={facts.devices} /></Section>
          {facts.links.length > 0 && (
            <Section title="Direct links between devices">
              <Text fontSize="sm" overflowWrap="anywhere">{facts.links.map((pair) => pair.join(" ↔ ")).join(", ")}</Text>
            </Section>
          )}
          <Leases leases={facts.leases} />
        </>
      )}
    </Box>
  );
};
