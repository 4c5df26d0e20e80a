// Drives RocketMQ's own Go client: sends in every way, consumes in every way, and says what
// happened, one JSON object a line. A test reads the lines and decides.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const topic = "GoOrders"

var (
	names  primitive.NsResolver
	output sync.Mutex
)

type fact map[string]any

func tell(what string, facts fact) {
	facts["what"] = what
	line, err := json.Marshal(facts)
	must(err)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	rlog.SetLogLevel("error")
	names = primitive.NewPassthroughResolver([]string{os.Args[1]})
	sendAll()
	sendTransactions()
	listen("plain", consumer.MessageSelector{})
	listen("tagged", consumer.MessageSelector{Type: consumer.TAG, Expression: "sync || async"})
	listen("filtered", consumer.MessageSelector{Type: consumer.SQL92, Expression: "rank BETWEEN 3 AND 5"})
	listen("orderly", consumer.MessageSelector{Type: consumer.TAG, Expression: "ordered"}, consumer.WithConsumerOrder(true))
	listen("everybody", consumer.MessageSelector{}, consumer.WithConsumerModel(consumer.BroadCasting))
	tell("ready", fact{})
	// Whoever started us closes our input when it has seen enough.
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func sendAll() {
	made, err := rocketmq.NewProducer(
		producer.WithNsResolver(names), producer.WithGroupName("go-makers"), producer.WithRetry(2),
		producer.WithQueueSelector(producer.NewHashQueueSelector()))
	must(err)
	must(made.Start())
	ctx := context.Background()
	for rank := 0; rank < 8; rank++ {
		message := message("sync", rank).WithKeys([]string{fmt.Sprintf("key-%d", rank)})
		message.WithProperty("rank", fmt.Sprint(rank))
		sent("sync", must1(made.SendSync(ctx, message)))
	}
	var pending sync.WaitGroup
	for rank := 0; rank < 8; rank++ {
		pending.Add(1)
		must(made.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
			must(err)
			sent("async", result)
			pending.Done()
		}, message("async", rank)))
	}
	pending.Wait()
	for rank := 0; rank < 4; rank++ {
		must(made.SendOneWay(ctx, message("oneway", rank)))
	}
	batch := make([]*primitive.Message, 8)
	for rank := range batch {
		batch[rank] = message("batch", rank)
	}
	sent("batch", must1(made.SendSync(ctx, batch...)))
	for rank := 0; rank < 12; rank++ {
		key := fmt.Sprintf("customer-%d", rank%3)
		sent("ordered", must1(made.SendSync(ctx, message("ordered", rank).WithShardingKey(key))))
	}
	large := primitive.NewMessage(topic, []byte("large "+strings.Repeat("x", 20000))).WithTag("large")
	sent("large", must1(made.SendSync(ctx, large)))
	sent("delayed", must1(made.SendSync(ctx, message("delayed", 0).WithDelayTimeLevel(1))))
	must(made.Shutdown())
}

func message(tag string, rank int) *primitive.Message {
	return primitive.NewMessage(topic, []byte(fmt.Sprintf("%s %d", tag, rank))).WithTag(tag)
}

func must1(result *primitive.SendResult, err error) *primitive.SendResult {
	must(err)
	return result
}

func sent(how string, result *primitive.SendResult) {
	tell("sent", fact{
		"how": how, "status": int(result.Status), "id": result.MsgID, "offsetId": result.OffsetMsgID,
		"queue": result.MessageQueue.QueueId, "offset": result.QueueOffset,
	})
}

type decisions struct{}

func (decisions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch string(message.Body) {
	case "transaction commit":
		return primitive.CommitMessageState
	case "transaction rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (decisions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	tell("checked", fact{"body": string(message.Body)})
	return primitive.CommitMessageState
}

func sendTransactions() {
	made, err := rocketmq.NewTransactionProducer(
		decisions{}, producer.WithNsResolver(names), producer.WithGroupName("go-deciders"))
	must(err)
	must(made.Start())
	for _, fate := range []string{"commit", "rollback", "unknown"} {
		body := []byte("transaction " + fate)
		message := primitive.NewMessage(topic, body).WithTag("transaction")
		result, err := made.SendMessageInTransaction(context.Background(), message)
		must(err)
		tell("decided", fact{"fate": fate, "state": int(result.State)})
	}
	// Stays: the broker will ask it about the unknown one.
}

func listen(name string, selector consumer.MessageSelector, more ...consumer.Option) {
	options := append(more,
		consumer.WithNsResolver(names), consumer.WithGroupName("go-"+name), consumer.WithInstance(name),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	made, err := rocketmq.NewPushConsumer(options...)
	must(err)
	must(made.Subscribe(topic, selector, func(
		_ context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		outcome := consumer.ConsumeSuccess
		for _, message := range messages {
			tell("got", fact{
				"consumer": name, "body": string(message.Body), "tag": message.GetTags(),
				"queue": message.Queue.QueueId, "times": message.ReconsumeTimes,
			})
			if name == "plain" && string(message.Body) == "sync 0" && message.ReconsumeTimes == 0 {
				outcome = consumer.ConsumeRetryLater
			}
		}
		return outcome, nil
	}))
	must(made.Start())
}
