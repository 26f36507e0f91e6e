// Numbers and times as text.

const UNITS: [number, string][] = [
  [86_400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

/** Seconds in the two largest units. */
export const duration = (seconds: number): string => {
  let rest = Math.max(0, Math.round(seconds));
  const parts: string[] = [];
  for (const [size, unit] of UNITS) {
    const number = Math.floor(rest / size);
    rest -= number * size;
    if (number > 0) parts.push(`${number} ${unit}`);
    if (parts.length === 2) break;
  }
  return parts.join(" ") || "0 s";
};

/** Seconds between a time and now. */
export const secondsSince = (time: string): number => (Date.now() - Date.parse(time)) / 1000;

/** How long ago a time was. */
export const ago = (time: string): string => `${duration(secondsSince(time))} ago`;

/** The time of day; with the date if it is on another day. */
export const clock = (time: string): string => {
  const date = new Date(time);
  const isToday = date.toDateString() === new Date().toDateString();
  const hours = date.toLocaleTimeString([], { hour: "2-digit", hourCycle: "h23", minute: "2-digit" });
  return isToday ? hours : `${date.toLocaleDateString([], { day: "numeric", month: "short" })} ${hours}`;
};

/** Bytes in GiB, or MiB below one. */
export const bytes = (number: number): string =>
  number >= 2 ** 30 ? `${(number / 2 ** 30).toFixed(number < 10 * 2 ** 30 ? 1 : 0)} GiB` : `${Math.round(number / 2 ** 20)} MiB`;

export const percent = (part: number): string => `${Math.round(100 * part)} %`;

/** A number with its noun. */
export const count = (number: number, noun: string): string => `${number.toLocaleString()} ${noun}${number === 1 ? "" : "s"}`;

/** Hours with two digits after the point. */
export const hours = (number: number): string =>
  number.toLocaleString([], { maximumFractionDigits: 2, minimumFractionDigits: 2 });
