#include "launcher/hints.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace ivy {
namespace {

bool mentions_any(std::string_view text, const auto& words) {
  return std::any_of(words.begin(), words.end(), [text](std::string_view word) {
    return text.find(word) != std::string_view::npos;
  });
}

constexpr std::array<std::string_view, 3> kLocalNames = {"localhost", "127.0.0.1", "[::1]"};
constexpr std::array<std::string_view, 5> kConnectTroubles = {
    "timed out", "timeout", "Timeout", "Connection refused", "connection refused"};

}  // namespace

std::optional<Diagnostic> overwritten_master_address(const std::vector<WorkerEnd>& ends,
                                                     const std::string& first_host,
                                                     const std::string& master_address) {
  for (const WorkerEnd& end : ends) {
    if (end.host == first_host || end.status.success()) continue;
    if (!mentions_any(end.stderr_tail, kLocalNames)) continue;
    if (!mentions_any(end.stderr_tail, kConnectTroubles)) continue;
    Diagnostic hint;
    hint.severity = Severity::kWarning;
    hint.id = "IVY-R010";
    hint.what = "rank " + std::to_string(end.rank) +
                " looked for rank 0 on its own host: the script seems to overwrite MASTER_ADDR";
    hint.where = end.host + "; workers were given MASTER_ADDR=" + master_address;
    hint.fix =
        "do not set MASTER_ADDR in the script, or only when it is unset: "
        "os.environ.setdefault(\"MASTER_ADDR\", \"localhost\")";
    return hint;
  }
  return std::nullopt;
}

}  // namespace ivy
