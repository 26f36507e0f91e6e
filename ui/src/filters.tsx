// The address of the page holds the view, the filters and the selection, so a link can be shared.
import { Button, Flex, Input, NativeSelect } from "@chakra-ui/react";
import { useEffect, useRef, useState } from "react";
import { useSearchParams } from "react-router-dom";

import { type Schemas, STATES } from "./parts";
import { usePoll } from "./poll";

export const FIELDS = ["search", "kind", "vendor", "model", "site", "rack", "label", "state"] as const;
type Field = (typeof FIELDS)[number];
export type Filter = Partial<Record<Field, string>>;

const TYPING_MS = 300;
const CHOICES_MS = 15_000;

/** The part of the address that belongs to the page, and a way to change it. */
export const useAddress = () => {
  const [parameters, setParameters] = useSearchParams();
  const change = (values: Record<string, string | undefined>): void => {
    // The parameters of the last render may be older than the address: the router renders later than it navigates.
    const after = new URLSearchParams(globalThis.location.search);
    for (const [name, value] of Object.entries(values)) {
      if (value) after.set(name, value);
      else after.delete(name);
    }
    setParameters(after, { replace: true });
  };
  const filter: Filter = {};
  for (const field of FIELDS) {
    const value = parameters.get(field);
    if (value) filter[field] = value;
  }
  return { change, filter, parameters };
};

const Choice = ({
  choices,
  field,
  onChange,
  value,
}: {
  choices: [string, string][];
  field: Field;
  onChange: (value: string) => void;
  value: string;
}) => (
  <NativeSelect.Root size="sm" width="auto">
    <NativeSelect.Field aria-label={`Filter by ${field}`} onChange={(event) => onChange(event.currentTarget.value)} value={value}>
      <option value="">any {field}</option>
      {choices.map(([name, label]) => (
        <option key={name} value={name}>
          {label}
        </option>
      ))}
    </NativeSelect.Field>
    <NativeSelect.Indicator />
  </NativeSelect.Root>
);

/** The filters; those without a choice are not shown. */
export const Filters = () => {
  const { change, filter } = useAddress();
  const choices = usePoll<Schemas["FleetSummary"]>("summary", CHOICES_MS).value?.choices ?? {};
  const [typed, setTyped] = useState(filter.search ?? "");
  const set = (field: Field, value: string): void => change({ [field]: value, offset: undefined });
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const search = (text: string): void => {
    setTyped(text);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => set("search", text), TYPING_MS);
  };
  const clear = (): void => {
    setTyped("");
    clearTimeout(timer.current);
    change(Object.fromEntries(["offset", ...FIELDS].map((field) => [field, undefined])));
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  const states = Object.entries(STATES).map(([name, look]): [string, string] => [name, look.label]);
  return (
    <Flex align="center" gap={2} my={3} wrap="wrap">
      <Input
        aria-label="Search by worker, host, device or model"
        maxLength={256}
        onChange={(event) => search(event.target.value)}
        placeholder="worker, device or model"
        size="sm"
        type="search"
        value={typed}
        width="220px"
      />
      {FIELDS.filter((field) => field !== "search" && field !== "state" && ((choices[field]?.length ?? 0) > 1 || filter[field])).map(
        (field) => (
          <Choice
            choices={[...new Set([...(choices[field] ?? []), ...(filter[field] ? [filter[field]] : [])])].map((name) => [name, name])}
            field={field}
            key={field}
            onChange={(value) => set(field, value)}
            value={filter[field] ?? ""}
          />
        ),
      )}
      <Choice choices={states} field="state" onChange={(value) => set("state", value)} value={filter.state ?? ""} />
      {Object.keys(filter).length > 0 && (
        <Button onClick={clear} size="sm" variant="ghost">Clear filters</Button>
      )}
    </Flex>
  );
};
