// What tasks held and what devices did: sums of days, and a bar for each day.
import { Badge, Box, Flex, NativeSelect, Table, Text } from "@chakra-ui/react";

import { useAddress } from "./filters";
import { hours } from "./format";
import { Columns, type Schemas, Scroller, Status } from "./parts";
import { query, usePoll } from "./poll";

type Sums = Schemas["UsageTable"];
type Row = Schemas["SubjectUsage"];
type Day = Schemas["UsageDay"];

const PERIOD_MS = 30_000;
const SUBJECTS = ["dag", "task", "owner", "team", "model", "worker", "device"] as const;
const NAMES: Record<string, string> = { dag: "DAG" };
const DAYS = [1, 7, 30, 90, 365];
const DEFAULT_DAYS = 30;
const PARTS = [
  { colour: "blue.solid", field: "held_h", label: "held by tasks" },
  { colour: "green.solid", field: "free_h", label: "free" },
  { colour: "orange.solid", field: "on_hold_h", label: "on hold or faulty" },
] as const;
const SIMULATED = " (simulated)";

const nameOf = (subject: string): string => NAMES[subject] ?? `${subject[0]?.toUpperCase()}${subject.slice(1)}`;

const existed = (day: Day): number => PARTS.reduce((sum, part) => sum + day[part.field], 0);

const Choice = ({
  label,
  onChange,
  options,
  value,
}: {
  label: string;
  onChange: (value: string) => void;
  options: [string, string][];
  value: string;
}) => (
  <NativeSelect.Root size="sm" width="auto">
    <NativeSelect.Field aria-label={label} onChange={(event) => onChange(event.currentTarget.value)} value={value}>
      {options.map(([name, text]) => (
        <option key={name} value={name}>{text}</option>
      ))}
    </NativeSelect.Field>
    <NativeSelect.Indicator />
  </NativeSelect.Root>
);

/** A stacked bar for each day; a screen reader hears a list of days. */
const DayBars = ({ sums }: { sums: Sums }) => {
  const highest = Math.max(...sums.days.map(existed), 1e-9);
  const unit = sums.of_days === "cpu" ? "core-hours" : "device-hours";
  const words = (day: Day): string =>
    `${day.day}: ${PARTS.map((part) => `${hours(day[part.field])} ${unit} ${part.label}`).join(", ")}`;
  return (
    <Box my={3}>
      <Flex gap={4} mb={2} wrap="wrap">
        {PARTS.map((part) => (
          <Flex align="center" fontSize="sm" gap={2} key={part.field}>
            <Box bg={part.colour} borderRadius="sm" height="12px" width="12px" />
            {part.label}
          </Flex>
        ))}
        <Text color="fg.muted" fontSize="sm">
          {sums.of_days === "cpu" ? "CPU cores" : "Accelerators"}, {unit} a day (UTC); the highest bar is {hours(highest)}
        </Text>
      </Flex>
      <Scroller label="Device-time of each day">
        <Flex align="flex-end" as="ul" gap="2px" height="140px" listStyleType="none" maxW="1000px" minW={`${4 * sums.days.length}px`}>
          {sums.days.map((day) => (
            <Flex aria-label={words(day)} as="li" direction="column-reverse" flex="1 1 0" height="100%" key={day.day} maxW="60px" title={words(day)}>
              {PARTS.map((part) => (
                <Box bg={part.colour} flexShrink={0} height={`${(100 * day[part.field]) / highest}%`} key={part.field} />
              ))}
            </Flex>
          ))}
        </Flex>
      </Scroller>
      <Flex color="fg.muted" fontSize="xs" justify="space-between" maxW="1000px">
        <Text>{sums.days[0]?.day}</Text>
        <Text>{sums.days.length > 1 ? sums.days[sums.days.length - 1]?.day : ""}</Text>
      </Flex>
    </Box>
  );
};

const Amount = ({ value }: { value: number | null }) => <Table.Cell>{value === null ? "-" : hours(value)}</Table.Cell>;

const UsageRows = ({ by, rows }: { by: string; rows: Row[] }) => {
  const ofDevices = rows.some((row) => row.existed_h !== null);
  const hasPrices = rows.some((row) => row.cost !== null);
  const amounts = ofDevices ? ["Existed (h)", "Held (h)", "Free (h)", "On hold (h)", "Held of what existed"] : ["Held (h)", "Leases"];
  return (
    <Scroller label="Sums">
      <Table.Root minW="640px" size="sm">
        <Columns names={[nameOf(by), ...(by === "model" ? [] : ["Devices"]), ...amounts, ...(hasPrices ? ["Cost"] : [])]} />
        <Table.Body>
          {rows.map((row) => (
            <Table.Row key={`${row.subject} ${row.devices}`}>
              {by !== "model" && (
                <Table.Cell maxW="320px" overflowWrap="anywhere" whiteSpace="normal">
                  {row.subject ?? <Text as="span" color="fg.muted">DAGs that you may not see</Text>}
                </Table.Cell>
              )}
              <Table.Cell>
                {row.devices.replace(SIMULATED, "")}
                {row.is_cpu && " (cores)"} {row.devices.endsWith(SIMULATED) && <Badge variant="outline">simulated</Badge>}
              </Table.Cell>
              {ofDevices && <Amount value={row.existed_h} />}
              <Amount value={row.held_h} />
              {ofDevices ? (
                <>
                  <Amount value={row.free_h} />
                  <Amount value={row.on_hold_h} />
                  <Table.Cell>{row.existed_h ? `${((100 * row.held_h) / row.existed_h).toFixed(1)} %` : "-"}</Table.Cell>
                </>
              ) : (
                <Table.Cell>{row.leases?.toLocaleString()}</Table.Cell>
              )}
              {hasPrices && (
                <Table.Cell>
                  {row.cost === null
                    ? "no price"
                    : row.cost.toLocaleString([], { maximumFractionDigits: 2, minimumFractionDigits: 2 })}
                </Table.Cell>
              )}
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Scroller>
  );
};

export const UsageView = () => {
  const { change, parameters } = useAddress();
  const by = SUBJECTS.find((name) => name === parameters.get("by")) ?? "dag";
  const days = DAYS.find((number) => String(number) === parameters.get("days")) ?? DEFAULT_DAYS;
  const { problem, value } = usePoll<Sums>(`usage?${query({ by, days })}`, PERIOD_MS);
  return (
    <>
      <Flex align="center" gap={2} my={3} wrap="wrap">
        <Choice
          label="Add up by"
          onChange={(name) => change({ by: name })}
          options={SUBJECTS.map((name) => [name, `by ${NAMES[name] ?? name}`])}
          value={by}
        />
        <Choice
          label="Time"
          onChange={(name) => change({ days: name })}
          options={DAYS.map((number) => [String(number), number === 1 ? "today" : `${number} days`])}
          value={String(days)}
        />
      </Flex>
      <Status isLoading={value === undefined} problem={problem} />
      {value && (
        <>
          {value.days.length > 0 && <DayBars sums={value} />}
          {value.rows.length > 0 ? (
            <UsageRows by={by} rows={value.rows} />
          ) : (
            <Text color="fg.muted">Nothing was used in this time.</Text>
          )}
          <Text color="fg.muted" fontSize="sm" my={3}>
            Hours are device-hours; those of a CPU are hours of a core. The sums are at most one minute old.
            {value.total > value.rows.length && ` ${value.rows.length} of ${value.total} rows: the command airflow hetero usage shows all.`}
          </Text>
        </>
      )}
    </>
  );
};
