#include "rendezvous/dialects/http_dialect.h"

#include <gtest/gtest.h>

#include <string>

#include "rendezvous/dialects/connection.h"

namespace ivy::store {
namespace {

// A connection of Horovod's, as the server keeps it.
struct HttpClient {
  explicit HttpClient(Engine& engine) : connection(make_torch_connection(engine, "10.0.0.1:9")) {}

  std::string say(std::string_view bytes) {
    Replies replies;
    EXPECT_TRUE(connection->receive(bytes, 1, replies).ok());
    EXPECT_TRUE(replies.empty());
    return std::exchange(connection->unsent, {});
  }
  std::string put(const std::string& path, const std::string& body) {
    return say("PUT " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  std::string get(const std::string& path) { return say("GET " + path + " HTTP/1.1\r\n\r\n"); }
  std::string finish(const std::string& path) {
    return say("DELETE " + path + " HTTP/1.1\r\n\r\n");
  }

  std::unique_ptr<Connection> connection;
};

constexpr const char* kNone = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
constexpr const char* kDone = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

TEST(HttpDialectTest, KeepsValuesByScopeAndKey) {
  Engine engine;
  HttpClient client(engine);
  EXPECT_EQ(client.get("/global/0"), kNone);
  EXPECT_EQ(client.put("/global/0", std::string("a\0\r\n\r\nb", 7)), kDone);
  HttpClient other(engine);
  EXPECT_EQ(other.get("/global/0"),
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n" + std::string("a\0\r\n\r\nb", 7));
  EXPECT_EQ(other.get("/local_n0/0"), kNone);
}

TEST(HttpDialectTest, TheLastMemberEmptiesAScope) {
  Engine engine;
  HttpClient client(engine);
  for (const char* path : {"/global/0", "/global/1", "/local_n0/0"}) client.put(path, "x");
  EXPECT_EQ(client.finish("/global/0"), kDone);
  EXPECT_NE(client.get("/global/0"), kNone);
  EXPECT_EQ(client.finish("/global/0"), kDone);
  EXPECT_NE(client.get("/global/1"), kNone) << "the same member twice";
  EXPECT_EQ(client.finish("/global/1"), kDone);
  EXPECT_EQ(client.get("/global/0"), kNone);
  EXPECT_NE(client.get("/local_n0/0"), kNone);
  client.put("/global/0", "again");
  EXPECT_EQ(client.finish("/global/0"), kDone);
  EXPECT_EQ(client.get("/global/0"), kNone);
}

TEST(HttpDialectTest, TakesRequestsInAnyCut) {
  Engine engine;
  HttpClient client(engine);
  const std::string text =
      "PUT /s/k HTTP/1.1\r\ncontent-LENGTH:  3\r\n\r\nabcGET /s/k HTTP/1.0\r\n\r\n";
  std::string answered = client.say(text.substr(0, 8));
  for (const char byte : text.substr(8)) answered += client.say(std::string(1, byte));
  EXPECT_EQ(answered, std::string(kDone) + "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc");
}

TEST(HttpDialectTest, EndsWhatIsNoRequest) {
  for (const std::string text :
       {"GET /k HTTP/1.1\r\n\r\n", "PUT /s/k HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        "PUT /s/k HTTP/1.1\r\nContent-Length: x\r\n\r\n"}) {
    Engine engine;
    HttpClient client(engine);
    Replies replies;
    EXPECT_FALSE(client.connection->receive(text, 1, replies).ok()) << text;
  }
  Engine engine;
  HttpClient client(engine);
  Replies replies;
  EXPECT_FALSE(client.connection->receive("GET /" + std::string(20'000, 'x'), 1, replies).ok());
}

}  // namespace
}  // namespace ivy::store
