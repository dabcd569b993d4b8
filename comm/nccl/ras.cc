#include "comm/nccl/ras.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "comm/nccl/socket_address.h"

namespace ivy::comm::nccl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLook{50};
// All at once: the server takes line by line. Two seconds for a process that does not answer it.
constexpr std::string_view kQuestion = "CLIENT PROTOCOL 2\nTIMEOUT 2\nVERBOSE STATUS\n";
constexpr std::string_view kGreeting = "SERVER PROTOCOL ";
constexpr std::string_view kAccepted = "OK";
// A report goes among what a worker prints.
constexpr std::size_t kLinesMax = 60;
constexpr std::size_t kLineMax = 200;

// One connection: sends the question, reads until the other end hangs up.
class Asking {
 public:
  Asking(SocketAddress target, steady_clock::time_point deadline,
         const std::function<bool()>& is_in_vain)
      : deadline_(deadline), is_in_vain_(is_in_vain), socket_(target.open_socket()) {
    is_open_ =
        socket_ >= 0 && (connect(socket_, target.get(), target.size) == 0 || errno == EINPROGRESS);
  }
  ~Asking() {
    if (socket_ >= 0) close(socket_);
  }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

  // Who says nothing for so long is left alone.
  void run() {
    const auto first_word = std::min(deadline_, steady_clock::now() + kRasFirstWord);
    while (is_open_ && !is_in_vain_()) {
      const auto until = answer_.empty() ? first_word : deadline_;
      const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now());
      if (left <= milliseconds(0)) return;
      const bool has_sent = sent_ == kQuestion.size();
      pollfd ready{socket_, static_cast<short>(has_sent ? POLLIN : POLLOUT), 0};
      if (poll(&ready, 1, static_cast<int>(std::min(left, kLook).count())) <= 0) continue;
      has_sent ? receive() : send();
    }
  }
  const std::string& answer() const { return answer_; }
  // Refused or hung up on: nobody else is there either.
  bool has_ended() const { return !is_open_; }

 private:
  void send() {
    const ssize_t count = ::send(socket_, kQuestion.data() + sent_, kQuestion.size() - sent_,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) sent_ += static_cast<std::size_t>(count);
    is_open_ = count > 0 || errno == EAGAIN || errno == EINTR;
  }
  void receive() {
    char buffer[4096];
    const std::size_t room = std::min(sizeof buffer, kRasBytesMax - answer_.size());
    const ssize_t count = recv(socket_, buffer, room, MSG_DONTWAIT);
    if (count > 0) answer_.append(buffer, static_cast<std::size_t>(count));
    is_open_ = (count > 0 && answer_.size() < kRasBytesMax) ||
               (count < 0 && (errno == EAGAIN || errno == EINTR));
  }

  const steady_clock::time_point deadline_;
  const std::function<bool()>& is_in_vain_;
  const int socket_;
  bool is_open_ = false;
  std::size_t sent_ = 0;
  std::string answer_;
};

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  return lines;
}

// Without the greeting and what was said to the commands before. Whoever listens there has said it.
std::string cleaned(std::string_view answer) {
  std::string text;
  bool is_preface = true;
  for (const std::string_view line : lines_of(answer)) {
    is_preface = is_preface && (line.starts_with(kGreeting) || line == kAccepted);
    if (is_preface) continue;
    for (const char c : line) text += c >= ' ' && c <= '~' ? c : '?';
    text += '\n';
  }
  return text;
}

std::string_view trimmed(std::string_view line) {
  const std::size_t begin = line.find_first_not_of(' ');
  if (begin == std::string_view::npos) return "";
  return line.substr(begin, line.find_last_not_of(' ') + 1 - begin);
}

bool is_underline(std::string_view line) {
  return line.find_first_not_of('=') == std::string_view::npos;
}

}  // namespace

std::string ask_ras(std::string_view address, milliseconds patience,
                    const std::function<bool()>& is_in_vain) {
  const SocketAddress target = parse_with_port(address);
  if (!target.is_valid()) return "";
  const auto deadline = steady_clock::now() + patience;
  while (steady_clock::now() < deadline && !is_in_vain()) {
    Asking asking(target, deadline, is_in_vain);
    asking.run();
    if (asking.answer().starts_with(kGreeting)) return cleaned(asking.answer());
    if (asking.has_ended() || !asking.answer().empty()) return "";
  }
  return "";
}

std::string summary_of_ras(std::string_view answer, std::size_t longest) {
  const std::vector<std::string_view> lines = lines_of(answer);
  const auto errors = std::find(lines.begin(), lines.end(), "Errors");
  if (errors == lines.end()) return "nothing in time";
  std::string summary;
  for (auto line = errors; line != lines.end(); ++line) {
    const std::string_view text = trimmed(*line);
    if (text.empty() || text == "Errors" || text == "Warnings" || is_underline(text)) continue;
    // A headline, "#0-0 (27a079b828ff1a75) MISMATCH", stands before what is indented.
    const bool is_headline = line->front() != ' ';
    if (!summary.empty()) summary += summary.back() == ':' ? " " : ", ";
    summary += text;
    if (is_headline) summary += ':';
  }
  return summary.empty() ? "no error" : summary.substr(0, longest);
}

std::string report_of_ras(std::string_view answer, std::string_view communicator) {
  std::string report = "ivycomm: communicator " + std::string(communicator) +
                       " does not go on; NCCL's health service (RAS) says:\n";
  std::size_t shown = 0;
  for (const std::string_view line : lines_of(answer)) {
    if (trimmed(line).empty() || is_underline(trimmed(line))) continue;
    if (shown++ == kLinesMax) return report + "  ... (ncclras -v tells all of it)\n";
    report += "  " + std::string(line.substr(0, kLineMax)) + "\n";
  }
  return report;
}

}  // namespace ivy::comm::nccl
