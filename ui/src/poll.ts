// Asks a route every few seconds, and keeps the last answers beyond the life of a view.
import { useCallback, useEffect, useState } from "react";

const PERIOD_MS = 3000;
const MAX_PERIOD_MS = 30_000;

const answers = new Map<string, unknown>();

export type Answer<T> = { value?: T; problem?: string; refresh: () => void };

/** The address of a route of ours, also below a sub-path. */
export const address = (path: string): string => new URL(`hetero/page/${path}`, document.baseURI).toString();

/** The query of a route; empty values are left out. */
export const query = (values: Record<string, string | number | undefined>): string => {
  const filled = Object.entries(values).filter(([, value]) => value !== undefined && value !== "");
  return new URLSearchParams(filled.map(([name, value]) => [name, String(value)])).toString();
};

/** What the server says about a refused request, as a sentence. */
const problemOf = async (response: Response): Promise<string> => {
  if (response.status === 403) return "You do not have the permission to see this. Ask an administrator of Airflow.";
  try {
    const { detail } = (await response.json()) as { detail?: unknown };
    if (typeof detail === "string") return detail;
    if (Array.isArray(detail)) return detail.map((row: { msg?: string }) => row.msg ?? "").join("; ");
  } catch {
    // The answer is no JSON: the status says all.
  }
  return `The server answered ${response.status} ${response.statusText}.`;
};

const logIn = (): void => {
  const next = encodeURIComponent(globalThis.location.href);
  globalThis.location.assign(new URL(`auth/login?next=${next}`, document.baseURI).toString());
};

/** Fetch JSON. The browser sends the ETag of its copy, and returns the copy when nothing is new. */
const ask = async <T>(path: string, signal: AbortSignal): Promise<T> => {
  const response = await fetch(address(path), { cache: "no-cache", signal });
  if (response.status === 401) logIn();
  if (!response.ok) throw new Error(await problemOf(response));
  return (await response.json()) as T;
};

/** Send an order as JSON; an error has the server's sentence. */
export const send = async (path: string, body: unknown): Promise<void> => {
  const response = await fetch(address(path), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  if (response.status === 401) logIn();
  if (!response.ok) throw new Error(await problemOf(response));
};

/** The newest answer of a route. It is asked every 3 s while the page is visible, less often after errors. */
export const usePoll = <T>(path: string | undefined, periodMs: number = PERIOD_MS): Answer<T> => {
  const [, show] = useState(0);
  const [problem, setProblem] = useState<string>();
  const [round, setRound] = useState(0);
  const refresh = useCallback(() => setRound((value) => value + 1), []);

  useEffect(() => {
    if (path === undefined) return undefined;
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let wait = periodMs;
    const run = async (): Promise<void> => {
      if (!document.hidden) {
        try {
          const value = await ask<T>(path, abort.signal);
          if (JSON.stringify(answers.get(path)) !== JSON.stringify(value)) answers.set(path, value);
          setProblem(undefined);
          show((count) => count + 1);
          wait = periodMs;
        } catch (error) {
          if (abort.signal.aborted) return;
          setProblem(error instanceof Error ? error.message : String(error));
          wait = Math.min(2 * wait, MAX_PERIOD_MS);
        }
      }
      if (!abort.signal.aborted) timer = setTimeout(() => void run(), wait);
    };
    const wake = (): void => {
      if (!document.hidden) {
        clearTimeout(timer);
        void run();
      }
    };
    void run();
    document.addEventListener("visibilitychange", wake);
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", wake);
    };
  }, [path, periodMs, round]);

  return { value: path === undefined ? undefined : (answers.get(path) as T | undefined), problem, refresh };
};
