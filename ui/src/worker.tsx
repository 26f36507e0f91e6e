// One worker: what it offers, what it does, and a way to drain it.
import { Badge, Box, Button, Checkbox, Flex, Input, Text } from "@chakra-ui/react";
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

const Drain = ({ facts, onDone }: { facts: Facts; onDone: () => void }) => {
  const [target, setTarget] = useState<string>();
  const [reason, setReason] = useState("");
  const [move, setMove] = useState(false);
  const [problem, setProblem] = useState<string>();
  const [isBusy, setBusy] = useState(false);
  const isDrained = facts.holds.length > 0;
  const order = (path: string, body: unknown): void => {
    setBusy(true);
    send(path, body)
      .then(() => {
        setTarget(undefined);
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
        <Button disabled={isBusy} onClick={() => setTarget(facts.worker)} size="sm" variant="outline">
          Drain this worker
        </Button>
        {isDrained && (
          <Button disabled={isBusy} onClick={() => order("undrain", { target: facts.worker })} size="sm" variant="outline">
            Undrain this worker
          </Button>
        )}
      </Flex>
      {target !== undefined && (
        <Box aria-label={`Drain ${target}`} as="form" borderWidth={1} borderRadius="md" mt={3} p={3} role="group">
          <Text mb={2}>
            {target} gets no new task until somebody undrains it. Running tasks {move ? "save and continue elsewhere" : "may finish there"}.
          </Text>
          <Flex align="center" gap={3} wrap="wrap">
            <Input aria-label="Reason" maxLength={150} onChange={(event) => setReason(event.target.value)} placeholder="reason" size="sm" value={reason} width="260px" />
            <Checkbox.Root checked={move} onCheckedChange={({ checked }) => setMove(checked === true)} size="sm">
              <Checkbox.HiddenInput />
              <Checkbox.Control />
              <Checkbox.Label>Move running tasks</Checkbox.Label>
            </Checkbox.Root>
            <Button colorPalette="orange" disabled={isBusy} onClick={() => order("drain", { target, reason, move })} size="sm" type="button">
              Drain
            </Button>
            <Button onClick={() => setTarget(undefined)} size="sm" type="button" variant="ghost">
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
