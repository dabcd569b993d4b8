// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/advice.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "proto/os/socket_address.h"
namespace ivy {
namespace {

constexpr std::array<std::string_view, 4> kLocalNames = {"localhost", "127.0.0.1", "::1]", "(::1,"};
constexpr std::array<std::string_view, 2> kTimeOuts = {"timed out", "imeout"};
constexpr std::array<std::string_view, 3> kConnects = {"connect to", "connecting to", "connect("};
// Words in the error messages of programs that connect to rank 0: PyTorch's store and the
// frameworks that use it, and JAX's service.
constexpr std::array<std::string_view, 7> kRendezvous = {
    "c10d", "client socket", "TCPStore", "tcp://", "MASTER_", "endezvous", "oordinat"};
// The error of a failed bind(), as strerror(), Go, Java and Node.js print it.
constexpr std::array<std::string_view, 3> kInUse = {"ddress already in use", "ddress in use",
                                                    "EADDRINUSE"};
constexpr char kOverwritten[] =
    "do not set MASTER_ADDR and MASTER_PORT in the script, or only where they are unset:\n"
    "os.environ.setdefault(\"MASTER_ADDR\", \"localhost\")";

bool mentions_any(std::string_view text, const auto& words) {
  return std::any_of(words.begin(), words.end(), [text](std::string_view word) {
    return text.find(word) != std::string_view::npos;
  });
}

// True if the text contains the number and not only as a part of a longer one.
bool mentions_number(std::string_view text, const std::string& number) {
  const auto is_digit = [&](std::size_t at) {
    return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0;
  };
  for (std::size_t at = text.find(number); at != std::string_view::npos;
       at = text.find(number, at + 1))
    if ((at == 0 || !is_digit(at - 1)) && !is_digit(at + number.size())) return true;
  return false;
}

// True for a message about a failed connection. A timeout counts only in a line about connecting,
// because an established connection can time out too.
bool is_connect_failure(std::string_view line) {
  return line.find("refused") != std::string_view::npos ||
         (mentions_any(line, kTimeOuts) && mentions_any(line, kConnects));
}

enum class Target { kNone, kOwnHost, kGivenAddress };

// Returns which address a "failed to connect" message names.
Target failed_target(std::string_view line, const std::string& port) {
  if (!is_connect_failure(line)) return Target::kNone;
  const bool names_port = mentions_number(line, port);
  if (mentions_any(line, kLocalNames))
    return names_port || mentions_any(line, kRendezvous) ? Target::kOwnHost : Target::kNone;
  return names_port ? Target::kGivenAddress : Target::kNone;
}

Target failed_target_of(const WorkerEnd& end, const std::string& port) {
  std::string_view rest = end.stderr_tail;
  Target found = Target::kNone;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const Target target = failed_target(line, port);
    if (target == Target::kOwnHost) return target;
    if (target != Target::kNone) found = target;
  }
  return found;
}

// True if a worker on the store's own host failed to connect to this host, on another port than the
// store's.
bool dialled_other_port(const WorkerEnd& end, const std::string& port) {
  std::string_view rest = end.stderr_tail;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (is_connect_failure(line) && mentions_any(line, kLocalNames) &&
        mentions_any(line, kRendezvous) && !mentions_number(line, port)) {
      return true;
    }
  }
  return false;
}

// PyTorch's rank 0 counts the clients of its store, and gives up if some do not connect.
bool waited_for_peers(const WorkerEnd& rank_0) {
  return rank_0.stderr_tail.find("waiting for clients") != std::string::npos;
}

// True if the worker ran a store of its own to which no peer connected: PyTorch counted too few
// clients, or the Python hook has reported such a store (agent/node/workers/sitecustomize.py) and
// its requests timed out.
bool store_had_no_clients(const WorkerEnd& end) {
  const auto says = [&](const char* words) {
    return end.stderr_tail.find(words) != std::string::npos;
  };
  return waited_for_peers(end) ||
         (says("ivyrun: note: the script sets MASTER_PORT=") && says("Socket Timeout"));
}

// True if rank 0 was still running when the peer gave up on it.
bool outlived_peer(const WorkerEnd& rank_0, const WorkerEnd& peer) {
  if (waited_for_peers(rank_0)) return true;
  if (peer.after_stop) return false;  // The job was stopped; the peer did not give up.
  if (rank_0.after_stop) return true;
  return rank_0.at_ns - rank_0.clock_error_ns > peer.at_ns + peer.clock_error_ns;
}

// The port need not be in the same line as the error: a Python traceback shows it above, in the
// call.
bool names_taken_port(const WorkerEnd& end, const std::string& port) {
  const std::string_view tail = end.stderr_tail;
  return mentions_any(tail, kInUse) && mentions_number(tail, port);
}

Diagnostic hint_of(const WorkerEnd& peer, const MasterAddress& master) {
  Diagnostic hint;
  hint.severity = Severity::kWarning;
  hint.id = "IVY-R010";
  hint.where = peer.host + "; workers were given MASTER_ADDR=" + master.address +
               " MASTER_PORT=" + std::to_string(master.port);
  hint.fix = kOverwritten;
  return hint;
}

// Returns the advice for a worker on the store's own host, where MASTER_ADDR cannot be wrong.
std::optional<Diagnostic> own_store_hint(const WorkerEnd& end, const MasterAddress& master) {
  const bool served = store_had_no_clients(end);
  if (!master.has_store || !(served || dialled_other_port(end, std::to_string(master.port))))
    return std::nullopt;
  Diagnostic hint = hint_of(end, master);
  hint.what = "rank " + std::to_string(end.rank) +
              (served ? " started its own store, and no other rank connected to it"
                      : " looked for the store at a different address") +
              ": the script seems to overwrite MASTER_PORT";
  return hint;
}

}  // namespace

std::optional<Diagnostic> overwritten_master_address(const std::vector<WorkerEnd>& ends,
                                                     const MasterAddress& master) {
  if (is_loopback(master.address) || master.address == "localhost") return std::nullopt;
  const std::string port = std::to_string(master.port);
  const auto rank_0 =
      std::find_if(ends.begin(), ends.end(), [](const WorkerEnd& end) { return end.rank == 0; });
  for (const WorkerEnd& end : ends) {
    if (end.status.is_success()) continue;
    if (end.host == master.host) {
      if (std::optional<Diagnostic> hint = own_store_hint(end, master)) return hint;
      continue;
    }
    const std::string rank = "rank " + std::to_string(end.rank);
    switch (failed_target_of(end, port)) {
      case Target::kNone:
        continue;
      case Target::kOwnHost: {
        Diagnostic hint = hint_of(end, master);
        hint.what =
            rank + " looked for rank 0 on its own host: the script seems to overwrite MASTER_ADDR";
        return hint;
      }
      case Target::kGivenAddress: {
        if (rank_0 == ends.end() || !outlived_peer(*rank_0, end)) continue;
        Diagnostic hint = hint_of(end, master);
        hint.what =
            rank +
            " found no server there while rank 0 was running: the script of rank 0 seems to "
            "overwrite MASTER_ADDR or MASTER_PORT";
        hint.cause = "or rank 0 started its server only after " + rank + " had given up";
        return hint;
      }
    }
  }
  return std::nullopt;
}

std::optional<Diagnostic> taken_master_port(const std::vector<WorkerEnd>& ends,
                                            const MasterAddress& master) {
  if (!master.has_store) return std::nullopt;
  const std::string port = std::to_string(master.port);
  for (const WorkerEnd& end : ends) {
    if (end.status.is_success() || end.host != master.host || !names_taken_port(end, port))
      continue;
    Diagnostic hint;
    hint.severity = Severity::kWarning;
    hint.id = "IVY-R020";
    hint.what = "rank " + std::to_string(end.rank) + " could not open port " + port +
                ": it is MASTER_PORT, where the job's store listens";
    hint.where = end.host;
    hint.fix = "use another port for the script's server, or --no-store";
    return hint;
  }
  return std::nullopt;
}

std::optional<Diagnostic> missing_input(const WorkerEnd& first, const InputChoice& input) {
  constexpr std::array<std::string_view, 2> kEnds = {"EOFError: EOF when reading a line",
                                                     "bdb.BdbQuit"};
  const std::string_view tail = first.stderr_tail;
  // Only the last 200 bytes count: the text may also occur earlier in the output.
  const std::string_view last = tail.substr(tail.size() - std::min<std::size_t>(tail.size(), 200));
  if (input.gives(first.rank) || first.status.is_success() || !mentions_any(last, kEnds))
    return std::nullopt;
  Diagnostic hint;
  hint.severity = Severity::kNote;
  hint.what = "rank " + std::to_string(first.rank) + " read standard input, which is empty for it" +
              (input.kind == InputChoice::Kind::kRank
                   ? ": only rank " + std::to_string(input.rank) + " gets ivyrun's input"
                   : "");
  hint.fix = "use --stdin " + std::to_string(first.rank) +
             " to give this rank the input, or --stdin all: every rank gets a full copy;\n"
             "or call input() and breakpoint() only in rank 0 (if os.environ[\"RANK\"] == \"0\")";
  return hint;
}

}  // namespace ivy
