// cuboid schedule from outside: known makespans, refusals that say why, and files that go both ways.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run_cuboid.h"

namespace cuboid::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

const std::string kFiles = CUBOID_TEST_DATA "/cases/sched/";

json described(Words words) {
  words.insert(words.begin(), "schedule");
  words.insert(words.end(), {"--format", "json"});
  const Outcome outcome = run_cuboid(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return json::parse(outcome.out);
}

TEST(ScheduleCommand, ReadsAndTimesFiles) {
  const json gpipe = described({"--in", kFiles + "ok-gpipe-pp2-mb3.csv"});
  EXPECT_EQ(gpipe["makespan"], 12);
  EXPECT_EQ(gpipe["idle"], json({3, 3}));
  EXPECT_EQ(gpipe["peak_activations"], json({3, 3}));
  const json one = described({"--schedule", "file:" + kFiles + "ok-1f1b-pp4-mb8.csv"});
  EXPECT_EQ(one["makespan"], 33);
  EXPECT_EQ(one["idle"], json({9, 9, 9, 9}));
  EXPECT_EQ(one["peak_activations"], json({4, 3, 2, 1}));
  const json turn = described({"--in", kFiles + "ok-vshape-pp2-4stages-mb2.csv"});
  EXPECT_EQ(turn["stages"], 4);
  EXPECT_EQ(turn["ranks"], 2);
  EXPECT_EQ(turn["makespan"], 16);
}

// GPipe and 1F1B idle (p-1)(F+B) a rank; here F = 2, B = 5.
TEST(ScheduleCommand, GeneratesWithTheCostsGiven) {
  for (const char* name : {"gpipe", "1f1b"}) {
    const json made = described({"--schedule", name, "--pp", "3", "--micro-batches", "7", "--costs", "f=2,b=5"});
    EXPECT_EQ(made["makespan"], (7 + 2) * 7) << name;
    EXPECT_EQ(made["idle"], json({14, 14, 14})) << name;
    EXPECT_EQ(made["actions"][1].size(), 14U) << name;
  }
  EXPECT_GT(described({"--costs", "p2p=1"})["makespan"], described({})["makespan"]);
}

TEST(ScheduleCommand, WhatItWritesItReads) {
  const auto folder = fresh_folder("schedules");
  for (const Words& options : std::vector<Words>{{"--schedule", "1f1b"},
                                                 {"--schedule", "zb-h1", "--comms"},
                                                 {"--schedule", "interleaved-1f1b", "--virtual-stages", "3"}}) {
    Words words = {"schedule", "--pp", "3", "--micro-batches", "5", "--format", "csv"};
    words.insert(words.end(), options.begin(), options.end());
    const Outcome written = run_cuboid(words);
    EXPECT_EQ(written.status, 0) << written.err;
    std::ofstream(folder / "s.csv") << written.out;
    EXPECT_EQ(run_cuboid({"schedule", "--in", folder / "s.csv", "--format", "csv"}).out, written.out);
  }
  EXPECT_THAT(run_cuboid({"schedule", "--pp", "2", "--comms", "--format", "csv"}).out, HasSubstr("1RECV_F0"));
}

TEST(ScheduleCommand, Draws) {
  const Outcome text = run_cuboid({"schedule", "--pp", "2", "--micro-batches", "3"});
  EXPECT_THAT(text.out, HasSubstr("rank 1"));
  EXPECT_THAT(text.out, HasSubstr("bubble 25.0 %"));  // (p-1)/(m+p-1)
  EXPECT_THAT(run_cuboid({"schedule", "--format", "svg"}).out, ::testing::StartsWith("<svg"));
}

TEST(ScheduleCommand, AutoIsNoWorseThanTheBestNamedOneAndSaysSo) {
  const Words size = {"--pp", "4", "--micro-batches", "6", "--costs", "f=3,b=5,i=2,w=3"};
  const auto with = [&](const char* name) {
    Words words = size;
    words.insert(words.end(), {"--schedule", name});
    return described(words)["makespan"].get<double>();
  };
  for (const char* named : {"gpipe", "1f1b", "zb-h1", "zb-h2"}) EXPECT_LE(with("auto"), with(named)) << named;
  EXPECT_THAT(run_cuboid({"schedule", "--schedule", "auto"}).err, HasSubstr("lower bound"));
}

TEST(ScheduleCommand, RefusesAndSaysWhy) {
  const auto refused = [](Words words, const std::string& why) {
    words.insert(words.begin(), "schedule");
    const Outcome outcome = run_cuboid(words);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(why));
  };
  refused({"--in", kFiles + "bad-deadlock-order.csv"}, "rank 0 waits at 0B0, rank 1 at 1F1");
  refused({"--in", kFiles + "bad-missing-backward.csv"}, "1B1");
  refused({"--in", kFiles + "bad-full-b-and-w.csv"}, "already contains W");
  refused({"--in", kFiles + "ok-gpipe-pp2-mb3.csv", "--pp", "2"}, "--pp 2: the file");
  refused({"--in", "/no/such.csv"}, "/no/such.csv");
  refused({"--schedule", "1f1bb"}, "did you mean 1f1b?");
  refused({"--costs", "f=1,q=2"}, "'q=2' is not f=TIME");
  refused({"--costs", "f=-1"}, "'f=-1': a time is not negative");
  refused({"--max-activations", "2"}, "rank 0: holds activations of 4 micro-batches, 2 are allowed");
  refused({"--format", "png"}, "--format png: not one of text, csv, svg, json");
}

}  // namespace
}  // namespace cuboid::test
