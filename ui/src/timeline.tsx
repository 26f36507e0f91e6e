// Leases per device over time: the past hours, and when the current ones will probably end.
import { Box, Button, Flex, Text } from "@chakra-ui/react";
import type { KeyboardEvent } from "react";

import { useAddress } from "./filters";
import { clock, duration } from "./format";
import type { Schemas } from "./parts";

type Bar = Schemas["TimelineBar"];

const SPANS = [1, 3, 6, 12, 24, 72, 168];
const FUTURE = 0.25;
const LABEL = "240px";

const colour = (bar: Bar): string => {
  if (bar.end === null) return "blue.solid";
  return bar.outcome === "failed" || bar.state === "evicted" ? "red.solid" : "gray.solid";
};

const words = (bar: Bar): string => {
  const name = bar.task ? `${bar.task.dag_id}.${bar.task.task_id} (${bar.task.run_id})` : "a task of a DAG that you may not see";
  const likely = bar.likely_end ? `, probably until ${clock(bar.likely_end)}` : "";
  const end = bar.end ? `until ${clock(bar.end)}, ${bar.outcome ?? bar.state}` : `and still running${likely}`;
  return `${name}, from ${clock(bar.begin)} ${end}`;
};

export const TimelineChart = ({ hours, timeline }: { hours: number; timeline: Schemas["Timeline"] }) => {
  const { change } = useAddress();
  const since = Date.parse(timeline.since);
  const now = Date.parse(timeline.until);
  const span = (now - since) * (1 + FUTURE);
  const percent = (time: number): number => (100 * Math.min(Math.max(time - since, 0), span)) / span;
  const zoom = (step: number): void => {
    const at = SPANS.findIndex((value) => value >= hours);
    const next = SPANS[Math.min(SPANS.length - 1, Math.max(0, (at < 0 ? SPANS.length - 1 : at) + step))];
    change({ hours: String(next) });
  };
  const onKey = (event: KeyboardEvent): void => {
    if (event.key === "+") zoom(-1);
    if (event.key === "-") zoom(1);
  };
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => since + part * (now - since));
  return (
    <>
      <Flex align="center" gap={2} mb={2} wrap="wrap">
        <Button aria-label="Show a shorter time" onClick={() => zoom(-1)} size="xs" variant="outline">+</Button>
        <Button aria-label="Show a longer time" onClick={() => zoom(1)} size="xs" variant="outline">−</Button>
        <Text fontSize="sm">The past {duration(hours * 3600)}, and what is expected (dashed). Keys: + and −.</Text>
      </Flex>
      <Box aria-label="Leases per device" onKeyDown={onKey} overflowX="auto" role="region" tabIndex={0}>
        <Box minW="720px">
          <Flex fontSize="xs" mb={1}>
            <Box flexShrink={0} width={LABEL} />
            <Box flexGrow={1} height="18px" position="relative">
              {marks.map((mark) => (
                <Text color="fg.muted" key={mark} left={`${percent(mark)}%`} position="absolute" whiteSpace="nowrap">
                  {mark === now ? "now" : clock(new Date(mark).toISOString())}
                </Text>
              ))}
            </Box>
          </Flex>
          {timeline.rows.map((row) => (
            <Flex align="center" borderTopWidth={1} key={`${row.worker}/${row.device}`}>
              <Text flexShrink={0} fontSize="xs" lineClamp={1} title={`${row.worker} ${row.device} (${row.name})`} width={LABEL}>
                {row.worker} {row.device}
              </Text>
              <Box flexGrow={1} height="22px" position="relative">
                <Box as="ul" listStyleType="none">
                {row.bars.map((bar) => {
                  const begin = percent(Date.parse(bar.begin));
                  const end = percent(bar.end ? Date.parse(bar.end) : now);
                  const likely = bar.likely_end ? percent(Date.parse(bar.likely_end)) : end;
                  return (
                    <Box aria-label={words(bar)} as="li" key={bar.begin} title={words(bar)}>
                      <Box bg={colour(bar)} borderRadius="sm" height="16px" left={`${begin}%`} minW="3px" position="absolute" top="3px" width={`${end - begin}%`} />
                      {likely > end && (
                        <Box borderColor="blue.solid" borderStyle="dashed" borderWidth={1} height="16px" left={`${end}%`} position="absolute" top="3px" width={`${likely - end}%`} />
                      )}
                    </Box>
                  );
                })}
                </Box>
                <Box bg="border.emphasized" height="22px" left={`${percent(now)}%`} position="absolute" top={0} width="1px" />
              </Box>
            </Flex>
          ))}
        </Box>
      </Box>
      {timeline.rows.length === 0 && <Text color="fg.muted">No device matches.</Text>}
    </>
  );
};
