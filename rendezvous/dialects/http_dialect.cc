#include "rendezvous/dialects/http_dialect.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "proto/contract/text.h"

namespace ivy::store {
namespace {

constexpr std::size_t kMaxHeadBytes = 16u << 10;
constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::string_view kKeys = "http:";
constexpr std::string_view kFinished = "http-finished:";

Error bad_http(const std::string& what) { return Error{Code::kDataLoss, "HTTP: " + what}; }

// The value of Content-Length; 0 where there is none.
Result<std::size_t> body_bytes(std::string_view given) {
  const std::string head = lower_case(given);
  constexpr std::string_view kName = "\r\ncontent-length:";
  const std::size_t at = head.find(kName);
  if (at == std::string::npos) return std::size_t{0};
  std::size_t begin = at + kName.size();
  while (begin < head.size() && head[begin] == ' ') ++begin;
  std::size_t length = 0;
  const auto read = std::from_chars(head.data() + begin, head.data() + head.size(), length);
  if (read.ec != std::errc() || length > kMaxValueBytes) return bad_http("a body that is too long");
  return length;
}

std::string answer(std::string_view status, std::string_view body) {
  return "HTTP/1.1 " + std::string(status) + "\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + std::string(body);
}

// "/global/3" and "/global/3/x" are of member 3 of /global/.
std::string scope_of(const std::string& path) { return path.substr(0, path.find('/', 1) + 1); }

}  // namespace

bool begins_http(std::string_view bytes) {
  return bytes.starts_with("GET /") || bytes.starts_with("PUT /") || bytes.starts_with("DELETE /");
}

HttpDialect::~HttpDialect() {
  if (client_ != 0) engine_.leave(client_);
}

Result<void> HttpDialect::receive(std::string_view bytes, std::uint64_t now_ns, std::string& unsent,
                                  Replies& out) {
  buffer_.append(bytes);
  if (client_ == 0) {
    ClientInfo info;
    info.space = Space::kTorch;
    info.generation = engine_.generation();
    info.address = address_;
    client_ = IVY_TRY(engine_.join(std::move(info), now_ns));
  }
  HttpRequest request;
  while (IVY_TRY(read_request(request)))
    IVY_CHECK(serve(std::exchange(request, {}), Turn{now_ns, out}, unsent));
  return {};
}

Result<bool> HttpDialect::read_request(HttpRequest& request) {
  const std::size_t end = buffer_.find(kHeadEnd);
  if (end == std::string::npos && buffer_.size() > kMaxHeadBytes) return bad_http("a long header");
  if (end == std::string::npos) return false;
  const std::string head = buffer_.substr(0, end);
  const std::size_t length = IVY_TRY(body_bytes(head));
  const std::size_t begin = end + kHeadEnd.size();
  if (buffer_.size() < begin + length) return false;
  const std::size_t path = head.find(' ') + 1;
  request.method = head.substr(0, path == 0 ? 0 : path - 1);
  request.path = head.substr(path, head.find(' ', path) - path);
  request.body = buffer_.substr(begin, length);
  buffer_.erase(0, begin + length);
  if (!request.path.starts_with('/') || request.path.size() > kMaxKeyBytes / 2 ||
      scope_of(request.path).size() < 2)
    return bad_http("paths are /SCOPE/KEY");
  return true;
}

Result<void> HttpDialect::serve(HttpRequest request, Turn turn, std::string& unsent) {
  const std::string key = std::string(kKeys) + request.path;
  std::string status = "200 OK";
  std::string body;
  if (request.method == "PUT") {
    IVY_CHECK(ask(Set{key, std::move(request.body)}, turn));
  } else if (request.method == "GET") {
    Result<ReplyBody> found = ask(Get{key, std::nullopt}, turn);
    if (!found.ok() && found.error().code != Code::kNotFound) return found.error();
    if (found.ok())
      body = std::move(std::get<Value>(*found).bytes);
    else
      status = "404 Not Found";
  } else if (request.method == "DELETE") {
    IVY_CHECK(finish_member(request.path, turn));
  } else {
    status = "405 Method Not Allowed";
  }
  unsent += answer(status, body);
  return {};
}

Result<void> HttpDialect::finish_member(const std::string& path, Turn turn) {
  IVY_CHECK(ask(Set{std::string(kFinished) + path, "1"}, turn));
  const std::string scope = scope_of(path);
  const auto listed = [&](std::string_view space) -> Result<std::vector<std::string>> {
    return std::get<Keys>(IVY_TRY(ask(List{std::string(space) + scope, 0, {}}, turn))).keys;
  };
  const std::vector<std::string> keys = IVY_TRY(listed(kKeys));
  const std::vector<std::string> finished = IVY_TRY(listed(kFinished));
  std::set<std::string> members;
  for (const std::string& key : keys) {
    const std::string name = key.substr(kKeys.size() + scope.size());
    members.insert(name.substr(0, name.find('/')));
  }
  if (finished.size() < members.size()) return {};
  for (const std::vector<std::string>* all : {&keys, &finished})
    for (const std::string& key : *all) IVY_CHECK(ask(Delete{key}, turn));
  return {};
}

// The engine's answer, which is taken out of `turn.out`: it is ours alone.
Result<ReplyBody> HttpDialect::ask(Request request, Turn turn) {
  const RequestId id = ++last_;
  engine_.apply(client_, id, std::move(request), turn.now_ns, turn.out);
  const auto own = std::find_if(turn.out.begin(), turn.out.end(), [&](const Reply& reply) {
    return reply.client == client_ && reply.request == id;
  });
  if (own == turn.out.end()) return bad_http("it is spoken by the store alone, not by its leaves");
  ReplyBody body = std::move(own->body);
  turn.out.erase(own);
  if (Error* const error = std::get_if<Error>(&body)) return std::move(*error);
  return body;
}

}  // namespace ivy::store
