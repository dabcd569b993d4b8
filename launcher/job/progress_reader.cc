// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/progress_reader.h"

#include <chrono>
#include <utility>

#include "proto/contract/remote_text.h"

namespace ivy {
namespace {

// A restart is not delayed for longer by a file system that does not respond.
constexpr std::chrono::seconds kProgressTimeout{10};

}  // namespace

bool ProgressReader::is_wanted() const {
  return !job_.options.progress_file.empty() && !job_.options.dry_run;
}

Awaitable<void> ProgressReader::read_start(Sequence& steps) {
  if (!is_wanted()) co_return;
  const auto read = [this](const Arrival<Done>& arrive) { ask([arrive] { arrive({}); }); };
  co_await steps.wait_posted<Done>(read);
}

bool ProgressReader::has_read() {
  if (read_generation_ == job_.generation) return true;
  if (done_) return false;
  ask([this, generation = job_.generation] {
    read_generation_ = generation;
    job_.phase.check_end_later();
  });
  return false;
}

void ProgressReader::ask(std::function<void()> done) {
  const std::size_t index = job_.plan.host_of_rank(0).host_index;
  const HostRecord& host = job_.hosts[index];
  // Files of another host need not be the same.
  if (host_ != index) {
    finish();
    file_ = {};
    answers_ = {};
  }
  host_ = index;
  done_ = std::move(done);
  ProgressQuestion question;
  question.set_number(++number_);
  question.set_pattern(job_.options.progress_file);
  question.set_directory(host.facts && !host.facts->working_directory().empty()
                             ? host.facts->working_directory()
                             : job_.options.working_directory);
  Command command;
  command.mutable_task_input()->set_task(TASK_PROGRESS);
  command.mutable_task_input()->set_bytes(stage::framed(question.SerializeAsString()));
  if (host.lost || !job_.hosts.send(index, command)) return conclude({}, "the host was lost");
  timer_.expires_after(kProgressTimeout);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error)
      conclude({}, "its file system has not responded for " +
                       std::to_string(kProgressTimeout.count()) + " s");
  });
}

void ProgressReader::take(std::size_t host, const TaskOutput& output) {
  if (host_ != host) return;
  answers_.feed(output.bytes());
  for (;;) {
    const Result<std::optional<std::string>> message = answers_.next();
    ProgressAnswer answer;
    if (message.ok() && !*message) break;
    if (!message.ok() || !answer.ParseFromString(**message)) {
      answers_ = {};
      return conclude({}, "its answer cannot be read");
    }
    // Late answers belong to earlier questions.
    if (answer.number() != number_) continue;
    if (!answer.error().empty()) return conclude({}, RemoteText(answer.error()).line());
    conclude({.is_known = true,
              .path = RemoteText(answer.path()).line(),
              .mtime_ns = answer.mtime_ns(),
              .number = number_in_file(answer.text())},
             "");
  }
  if (output.ended()) conclude({}, RemoteText(output.why()).line());
}

void ProgressReader::conclude(const ProgressSample& sample, const std::string& why_unknown) {
  if (!done_) return;
  timer_.cancel();
  move_ = file_.take(sample);
  const std::string where = job_.hosts[*host_].name();
  if (!sample.is_known)
    job_.print("warning: --progress-file " + job_.options.progress_file + " on " + where + ": " +
               why_unknown + "; the progress of attempt " + std::to_string(job_.generation + 1) +
               " is unknown");
  if (move_ == ProgressMove::kBackward)
    job_.print("note: --progress-file: " + state() + "; this counts as no progress");
  std::exchange(done_, nullptr)();
}

void ProgressReader::finish() {
  timer_.cancel();
  done_ = nullptr;
  if (!host_) return;
  Command command;
  command.mutable_task_input()->set_task(TASK_PROGRESS);
  command.mutable_task_input()->set_end(true);
  job_.hosts.send(*host_, command);
}

std::string ProgressReader::state() const {
  return file_.text() + (host_ ? " (" + job_.hosts[*host_].name() + ")" : "");
}

}  // namespace ivy
